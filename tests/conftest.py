"""Its place puts this directory on the import path, for the helpers that tests of several packages share."""
