"""Agents whose behaviour is known, against everything that suites may say about them: nobody passes who should not."""
