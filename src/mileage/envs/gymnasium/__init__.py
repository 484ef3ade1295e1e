"""Everything that Gymnasium makes, stepped by Python."""
