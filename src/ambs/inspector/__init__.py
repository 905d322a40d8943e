"""The shield inspector: from a recorded episode to a page that tells why the shield stepped in. Reads files, learns nothing."""
