"""What is recorded when: steps, snapshots, lifetimes, the peak, counters of device and host."""

from leakscope.errors import check_python

check_python()  # whoever is about to look at live objects imports this first
