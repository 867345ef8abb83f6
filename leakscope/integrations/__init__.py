"""leakscope inside the frameworks people train with: one line to add, findings in the framework's own logger.

Each module is imported by whoever uses its framework, and needs that one installed.
"""
