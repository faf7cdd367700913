"""The compiled tier: local functions through Inductor, in another process, tested before they are used.

`Region` is what others use. A region is listed (`listing.py`), sent to a compiling process (`compiling.py`,
`worker.py`), tested there (`admission.py`), kept on disk (`stored.py`) and put in the place of the function
when it is ready (`region.py`). `import dtorch` loads only the choice of the mode.
"""
