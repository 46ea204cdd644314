"""What several commands share: options made of settings, text that is safe to print, imports."""
