"""Which configuration to measure next: our model of the times, plain lists of rows, and Optuna's samplers."""
