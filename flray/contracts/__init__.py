"""The contracts that every algorithm of flray keeps, tried on any: `flray check MODULE`."""
