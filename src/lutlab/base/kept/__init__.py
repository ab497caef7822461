"""Files that lutlab keeps: whole or not at all, sealed by a digest, in folders that are their user's alone.

files       written in one step; sealed, so that damage is noticed; set aside where it was; SHA256SUMS of a folder
findings    the user's cache folder, who can change it, and values that were found out once
built       folders of the cache that a compiler filled
"""
