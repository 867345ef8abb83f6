"""What is alive in this process, as plain data? Live objects are read here and left as they were."""

from leakscope.errors import check_python

check_python()  # whoever is about to look at live objects imports this first
