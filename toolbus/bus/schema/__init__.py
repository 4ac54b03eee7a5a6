"""JSON Schemas of tools' arguments: derived from functions, corrected, converted for models, and enforced."""
