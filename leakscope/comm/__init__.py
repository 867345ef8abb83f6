"""Point-to-point and collective operations, their Work handles and buffers, and RPC contexts."""
