"""The commands of `penstock-store`, a file each."""
