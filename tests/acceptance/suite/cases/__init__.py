"""The cases, one file per subject. Each says what it guards and why the kernel's own pass it."""
