"""What did each step leave behind? Steps that a file marks, or that a repeating sequence of allocations shows."""
