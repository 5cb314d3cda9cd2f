"""LISTENAI's LUNA: three chips of one family, with their packer and executor 3.0.4."""
