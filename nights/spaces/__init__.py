"""nights/spaces: embedding spaces: tables of vectors in an existing format, brought up to date by computing only rows that are new."""
