"""What happened when? Steps, looks, communication and memory over time, for a viewer of traces."""
