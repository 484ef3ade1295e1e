"""The live pages: `mileage serve`. Nothing here can write to the ledger."""
