"""The explorer: runs, studies, records or figures of a folder on a local, read-only page, or in one
HTML file.

The server needs the extra `view` (Starlette and uvicorn). The exported file does not.
"""

from ._catalog import Catalog
from ._export import export_page
from ._runset import Learned
from ._serve import browser_opened, serve

__all__ = ["Catalog", "Learned", "browser_opened", "export_page", "serve"]
