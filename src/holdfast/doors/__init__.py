"""Other names for the same house: interfaces of other systems, as thin skins."""
