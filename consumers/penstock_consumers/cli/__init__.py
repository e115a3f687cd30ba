"""The commands of `penstock-store`, a file each, and what they share."""
