"""What is recorded when: steps, snapshots, lifetimes, the peak, counters of device and host."""

from leakscope.errors import check_python

check_python()  # imported first by everything that reads live objects
