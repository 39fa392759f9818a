"""The pytest plug-in and the assertions it offers."""
