"""Batch systems behind one seam: what directors and job managers submit to, whatever runs at a site."""
