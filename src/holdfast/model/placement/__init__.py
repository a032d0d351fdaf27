"""What fits where: amounts, labels, spread, disruption, vacancies."""
