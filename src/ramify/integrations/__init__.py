"""Other people's tools, one file each. Importing one loads no third-party package; its functions do."""
