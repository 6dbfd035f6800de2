"""The version that packages carry."""

VERSION = "0.1.0"
