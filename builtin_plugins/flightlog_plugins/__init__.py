"""What ships in the box. Each module is an ordinary plugin and imports the contract only."""
