"""What all training runs share: curves, finite numbers, model folders, the process of ms-swift."""
