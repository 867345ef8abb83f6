"""What does a notebook show of it? A piece of HTML that needs no script, in the words of the text."""
