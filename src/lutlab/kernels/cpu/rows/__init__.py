"""What the kernels over blocks of rows share: layout, launch, tuning, execution."""
