"""Tests of integrations with other libraries."""
