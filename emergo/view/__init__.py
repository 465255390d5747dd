"""The explorer: a folder of runs, studies, records or figures as a page, on this machine and read-only, or as one file.

The server needs the extra `view` (Starlette and uvicorn); the exported file does not.
"""

from ._catalog import Catalog
from ._export import export_page

__all__ = ["Catalog", "export_page"]
