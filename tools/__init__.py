"""Tools for those who work on the project. No part of the package."""
