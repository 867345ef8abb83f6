"""Schedules of torch's on real ranks, whose stages release their outputs."""
