"""The `flightlog` command: its families of subcommands, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from flightlog import __version__
from flightlog.cli.commands import LazyGroup, PipeBroke
from flightlog.cli.exits import FAILED, FINE, exit_code_of, leaf, sentence
from flightlog.cli.output import PipeClosed, complain, reader_is_gone, silence_stdout

TRACEBACK_VARIABLE = "FLIGHTLOG_TRACEBACK"


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="flightlog %(version)s")
def flightlog() -> None:
    """Run agents that survive kill -9, from one append-only log.

    Exit codes: 0 fine, 1 the run failed, 2 usage, 3 the log was refused, 143 ended by SIGTERM.
    """


def run(arguments: Sequence[str] | None) -> int:
    """Run the command named in `arguments`; returns its exit code. Every error is one line on stderr."""
    _prepare_streams()
    try:
        code = flightlog.main(
            list(arguments) if arguments is not None else None, prog_name="flightlog", standalone_mode=False
        )
        sys.stdout.flush()
    except (PipeClosed, BrokenPipeError):
        silence_stdout()
        return FINE
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = f" (see {context.command_path} --help)" if context else ""
        complain(f"{error.format_message().rstrip('.')}{where}")
        return error.exit_code
    except PipeBroke as error:
        return _broken(error.pipe)
    except SystemExit as error:  # a shell was told how to complete
        return error.code if isinstance(error.code, int) else FAILED
    except (KeyboardInterrupt, click.Abort):
        complain("interrupted")
        return FAILED
    except BaseException as error:
        # Whatever it is, a person at a terminal gets one line; who hunts a bug asks for the rest.
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        inner = leaf(error)
        complain("interrupted" if isinstance(inner, KeyboardInterrupt) else sentence(inner))
        return exit_code_of(inner)
    return code if isinstance(code, int) else FINE


def _broken(pipe: BrokenPipeError) -> int:
    """What comes of a pipe that broke: nothing, unless it is another one than our stdout."""
    if reader_is_gone():
        silence_stdout()
        return FINE
    complain(sentence(pipe))
    return FAILED


def _prepare_streams() -> None:
    """Give us streams that exist and that can show any text somehow."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  lives as long as we do
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
