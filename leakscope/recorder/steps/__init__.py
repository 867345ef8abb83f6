"""Where steps end, when snapshots are taken, and how far the other ranks are."""
