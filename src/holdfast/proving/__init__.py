"""Whether a training resumes exactly: runs it undisturbed and interrupted, compares, and says where the two part."""
