"""What crosses between ranks? P2P and collective operations, their Work handles and buffers."""
