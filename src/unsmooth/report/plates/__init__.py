"""A figure with all it takes to read it, as SVG, PNG, csv and one HTML page: definitions compared, figures redrawn."""

from unsmooth.report.plates.plate import Definition, Plate, Table, definitions_plate, write_plate

__all__ = ["Definition", "Plate", "Table", "definitions_plate", "write_plate"]
