"""What tests share: worlds, doors, generators and oracles. It holds no test."""
