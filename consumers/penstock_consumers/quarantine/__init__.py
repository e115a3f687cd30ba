"""Quarantine, as who tends it sees it: what lies in the dead-letter topic, and how it is judged again."""
