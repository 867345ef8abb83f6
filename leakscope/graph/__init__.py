"""Who refers to whom? The heap as plain data, and the questions that are asked of it."""
