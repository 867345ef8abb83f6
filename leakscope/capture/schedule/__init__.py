"""When does a step end, and when is it looked at? Steps, looks, and where the ranks stand."""
