"""The experiment `emergo/forecast`: how good forecasts of emergence are."""
