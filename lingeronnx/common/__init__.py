"""What every package uses: errors, files, text, pages, digests and former names."""
