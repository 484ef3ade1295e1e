"""Every kernel once more, as plainly as it can be written, under the same file name."""
