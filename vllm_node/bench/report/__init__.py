"""Run documents as reports: Markdown, one HTML file, and two runs beside each other."""
