"""The cases, one file per subject. Each describes the property that it tests."""
