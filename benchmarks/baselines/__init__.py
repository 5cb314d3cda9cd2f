"""What we promise of each model, measured again and held against the table in docs/baseline.md (`make baseline`)."""
