"""A page to look into a model: one file, or served live."""

from keras_vit.inspection.page.file import check_pixels, chosen_hover, write_page
from keras_vit.inspection.page.live import serve

__all__ = ["check_pixels", "chosen_hover", "serve", "write_page"]
